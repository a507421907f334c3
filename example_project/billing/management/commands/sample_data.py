from datetime import timedelta
from decimal import Decimal

from billing.models import Invoice
from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand
from django.utils import timezone


class Command(BaseCommand):
    """Make something to do."""

    help = 'Make three invoices, two of which are due, and a session that has expired.'

    def handle(self, **options):
        today = timezone.localdate()
        for number, days in enumerate((-1, 0, 30), 1):
            Invoice.objects.update_or_create(
                number=f'{today:%Y%m%d}-{number}',
                defaults={
                    'email': f'customer-{number}@example.com',
                    'amount': Decimal('19.90') * number,
                    'due': today + timedelta(days=days),
                },
            )
        Session.objects.update_or_create(
            session_key='expired',
            defaults={'session_data': '', 'expire_date': timezone.now() - timedelta(days=1)},
        )
        self.stdout.write('2 invoices are due, 1 session has expired.')
