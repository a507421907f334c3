"""Settings of the project. What anarchon_celery needs is at the end.

It needs no server, and runs in one folder of one machine. With ``REDIS_URL=redis://…`` in the
environment Redis is the broker and the store, and there may be nodes on several machines.
"""

import os
import sys
from pathlib import Path

from anarchon_celery import cron

BASE_DIR = Path(__file__).resolve().parents[1]
VAR = BASE_DIR / 'var'  # all that is written
(VAR / 'broker').mkdir(parents=True, exist_ok=True)

SECRET_KEY = 'an example has no secrets'
DEBUG = 'runserver' in sys.argv  # which serves the admin's styles then; a worker must not be run with it
ALLOWED_HOSTS = ['127.0.0.1', 'localhost']
INSTALLED_APPS = [
    'django.contrib.admin',
    'django.contrib.auth',
    'django.contrib.contenttypes',
    'django.contrib.messages',
    'django.contrib.sessions',
    'django.contrib.staticfiles',
    'anarchon_celery.django',
    'billing',
    'office',
]
MIDDLEWARE = [
    'django.middleware.security.SecurityMiddleware',
    'django.contrib.sessions.middleware.SessionMiddleware',
    'django.middleware.common.CommonMiddleware',
    'django.middleware.csrf.CsrfViewMiddleware',
    'django.contrib.auth.middleware.AuthenticationMiddleware',
    'django.contrib.messages.middleware.MessageMiddleware',
]
ROOT_URLCONF = 'shop.urls'
STATIC_URL = 'static/'
TEMPLATES = [
    {
        'BACKEND': 'django.template.backends.django.DjangoTemplates',
        'APP_DIRS': True,
        'OPTIONS': {
            'context_processors': [
                'django.template.context_processors.request',
                'django.contrib.auth.context_processors.auth',
                'django.contrib.messages.context_processors.messages',
            ],
        },
    }
]
DATABASES = {
    'default': {
        'ENGINE': 'django.db.backends.sqlite3',
        'NAME': VAR / 'shop.sqlite3',
        'OPTIONS': {'timeout': 20},
    }
}
DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'
USE_TZ = True
TIME_ZONE = 'Europe/Berlin'

EMAIL_BACKEND = 'django.core.mail.backends.filebased.EmailBackend'
EMAIL_FILE_PATH = VAR / 'mail'
DEFAULT_FROM_EMAIL = 'billing@shop.example'

# Celery ---------------------------------------------------------------------------------------------

CELERY_TIMEZONE = TIME_ZONE
REDIS_URL = os.environ.get('REDIS_URL')
CELERY_BROKER_URL = REDIS_URL or 'filesystem://'
if not REDIS_URL:
    folders = ('data_folder_in', 'data_folder_out', 'control_folder')
    CELERY_BROKER_TRANSPORT_OPTIONS = dict.fromkeys(folders, str(VAR / 'broker'))

# anarchon_celery ------------------------------------------------------------------------------------

CELERY_BEAT_SCHEDULER = 'anarchon_celery.Scheduler'
CELERY_ANARCHON_STORE = REDIS_URL or f'sqlite:///{VAR / "anarchon.db"}'
CELERY_ANARCHON_PREFIX = 'shop'  # of keys and tables; another project on this store takes another

CELERY_BEAT_SCHEDULE = {
    'send-due-invoices': {
        'task': 'billing.tasks.send_due_invoices',
        'schedule': '1m',
    },
    'sync-exchange-rates': {
        'task': 'billing.tasks.sync_exchange_rates',
        'schedule': '1m',
        'options': {'anarchon': {'catch_up': 'none'}},  # the next rates are better than late ones
    },
    'nightly-report': {
        'task': 'office.tasks.nightly_report',
        'schedule': cron('30 2 * * *', timezone='Europe/Berlin'),
        'options': {'anarchon': {'lease': '1m', 'catch_up_window': '12h'}},
    },
    'clear-expired-sessions': {  # an ordinary task: sent once per slot, not watched afterwards
        'task': 'office.tasks.clear_expired_sessions',
        'schedule': '10m',
    },
}
