"""What Django's admin shows: jobs, runs and nodes. An admin site of one's own registers them the same way."""

from __future__ import annotations

from django.contrib import admin

from .jobs import JobAdmin
from .models import Job, Node, Run
from .nodes import NodeAdmin
from .runs import RunAdmin

admin.site.register(Job, JobAdmin)
admin.site.register(Run, RunAdmin)
admin.site.register(Node, NodeAdmin)
