"""The Django app: what ``manage.py check`` says of the settings, and jobs, runs and nodes in the admin.

Put ``"anarchon_celery.django"`` into ``INSTALLED_APPS``. It has no tables and no migrations: what it shows
is in the store, whichever that is.
"""
