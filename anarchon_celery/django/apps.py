"""What Django is told of the app."""

from __future__ import annotations

from celery import Celery, _state
from django.apps import AppConfig
from django.core.checks import register


class AnarchonConfig(AppConfig):  # type: ignore[misc]
    """Registers the checks, and keeps the project's Celery app.

    Attributes:
        celery: the app that there was when Django was ready; None: none yet. Threads of a web server have no
            current app of Celery's, so it is looked up here, in the main one.
    """

    name = "anarchon_celery.django"
    label = "anarchon"
    verbose_name = "Scheduled jobs"
    celery: Celery | None = None

    def ready(self) -> None:
        """Note the app; ``celery.current_app`` would make one where there is none, and that would stay."""
        from .checks import check_settings, check_store

        self.celery = _state._tls.current_app or _state.default_app
        register(check_settings, "anarchon")
        register(check_store, "anarchon", deploy=True)
