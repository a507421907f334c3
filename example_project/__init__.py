"""What a project with anarchon_celery looks like: a quick start, a demo that plays it, a Django project."""
