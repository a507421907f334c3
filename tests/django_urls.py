"""The addresses of the tests' site."""

from django.contrib import admin
from django.urls import path

from anarchon_celery.django.jobs import JobAdmin
from anarchon_celery.django.models import Job, Run
from anarchon_celery.django.runs import RunAdmin

#: Somebody's own site beside the usual one.
operations = admin.AdminSite(name="operations")
operations.register(Job, JobAdmin)
operations.register(Run, RunAdmin)

urlpatterns = [path("under/admin/", admin.site.urls), path("operations/", operations.urls)]
