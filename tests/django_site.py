"""Django in the process of the tests: one site with the admin, whose database is in memory.

Celery's part of Django stays away, as no DJANGO_SETTINGS_MODULE is set: each test gives the app it is about.
"""

from __future__ import annotations

import contextlib

import django
from django.apps import apps
from django.conf import settings

MIDDLEWARE = (
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
)
CONTEXT = (
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
)


def set_up() -> None:
    """Set Django up, once in a process."""
    if settings.configured:
        return
    contrib = ("admin", "auth", "contenttypes", "messages", "sessions", "staticfiles")
    settings.configure(
        SECRET_KEY="of tests", ALLOWED_HOSTS=["testserver"], USE_TZ=True, TIME_ZONE="Europe/Berlin",
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in contrib), "anarchon_celery.django"],
        MIDDLEWARE=MIDDLEWARE,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TEMPLATES=[{
            "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
            "OPTIONS": {"context_processors": CONTEXT},
        }],
        ROOT_URLCONF="tests.django_urls", STATIC_URL="static/", LOGGING_CONFIG=None,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )  # fmt: skip
    django.setup()


def make_tables() -> None:
    """Make Django's own tables: no user would be there without, nor their rights."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


@contextlib.contextmanager
def project_of(app):
    """Have this be the project's Celery app."""
    config = apps.get_app_config("anarchon")
    before, config.celery = config.celery, app
    try:
        yield
    finally:
        config.celery = before


def user(name: str, *rights: str, **how):
    """Return a user of the admin with these rights, made anew."""
    from django.contrib.auth.models import Permission, User

    User.objects.filter(username=name).delete()
    made = User.objects.create_user(name, is_staff=True, **how)
    ours = Permission.objects.filter(content_type__app_label="anarchon")
    made.user_permissions.set(ours.filter(codename__in=rights))
    return made
