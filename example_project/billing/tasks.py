"""Jobs that must not run twice at a time, nor be lost: they run under a lease.

``self.lease.check()`` stops a run that was handed over or lost. Between a check and a write a worker can
be paused, so each write is fenced: what a later run has touched stays untouched, and the late one is told.
Called by hand there is no run: the slot is None, and what a run has written is refused.
"""

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from celery import shared_task
from django.core.mail import EmailMessage
from django.utils import timezone

import anarchon_celery
from anarchon_celery.fencing import fenced

from .models import ExchangeRate, Invoice


@shared_task(base=anarchon_celery.Task, bind=True, ignore_result=True)
def send_due_invoices(self):
    """Mail each invoice that is due and was not sent."""
    due = Invoice.objects.filter(sent_at=None, due__lte=timezone.localdate())
    for invoice in due.order_by('due', 'number'):
        self.lease.check()
        # Ours from now on, for all earlier runs; one that died before it was sent does not keep it.
        if not fenced(due.filter(pk=invoice.pk)).update():
            continue
        _mail(invoice)
        fenced(Invoice.objects.filter(pk=invoice.pk)).update(sent_at=timezone.now())


def _mail(invoice):
    """Send it; if it is ever sent twice, both mails have one Message-ID, and one of them is shown."""
    EmailMessage(
        subject=f'Invoice {invoice.number}',
        body=f'Please pay {invoice.amount} EUR by {invoice.due + timedelta(days=14)}.',
        to=[invoice.email],
        headers={'Message-ID': f'<invoice-{invoice.number}@shop.example>'},
    ).send()


@shared_task(base=anarchon_celery.Task, bind=True, ignore_result=True)
def sync_exchange_rates(self):
    """Write today's rates, each unless a later run has written it."""
    as_of = self.lease.slot or timezone.now()
    for currency, rate in _fetch_rates().items():
        self.lease.check()
        fenced(ExchangeRate.objects).update_or_create({'rate': rate, 'as_of': as_of}, currency=currency)


def _fetch_rates():
    """Ask the bank; here it is a file, so that the example needs no network."""
    rates = json.loads(Path(__file__).with_name('rates.json').read_text())
    return {currency: Decimal(rate) for currency, rate in rates.items()}
