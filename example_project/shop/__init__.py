"""The project: a shop that sends invoices."""

from .celery import app as celery_app

__all__ = ['celery_app']
