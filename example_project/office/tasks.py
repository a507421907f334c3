"""A report that runs under a lease, and an ordinary task that does not need one."""

from datetime import timedelta

from billing.models import Invoice
from celery import shared_task
from django.core.management import call_command
from django.db.models import Count, Sum
from django.utils import timezone

import anarchon_celery
from anarchon_celery.fencing import fenced

from .models import DailyReport


@shared_task(base=anarchon_celery.Task, bind=True, ignore_result=True)
def nightly_report(self):
    """Sum up the day before the slot: a later attempt, too, reports about that day."""
    slot = self.lease.slot or timezone.now()  # None when called by hand
    day = timezone.localdate(slot) - timedelta(days=1)
    sent = Invoice.objects.filter(sent_at__date=day).aggregate(invoices=Count('pk'), total=Sum('amount'))
    self.lease.check()
    fenced(DailyReport.objects).update_or_create(
        {'invoices': sent['invoices'], 'total': sent['total'] or 0}, day=day
    )


@shared_task(ignore_result=True)
def clear_expired_sessions():
    """Delete sessions that are over; twice does no harm, so it needs no lease."""
    call_command('clearsessions')
