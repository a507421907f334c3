from django.db import models


class Invoice(models.Model):
    """An invoice, to be mailed to its customer on the day it falls due."""

    number = models.CharField(max_length=20, unique=True)
    email = models.EmailField()
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    due = models.DateField()
    sent_at = models.DateTimeField(null=True, blank=True)
    fence = models.BigIntegerField(default=0, help_text='of the run that sends it')

    def __str__(self):
        return self.number


class ExchangeRate(models.Model):
    """What a euro costs."""

    currency = models.CharField(max_length=3, primary_key=True)
    rate = models.DecimalField(max_digits=12, decimal_places=6)
    as_of = models.DateTimeField()
    fence = models.BigIntegerField(default=0, help_text='of the run that wrote it')

    def __str__(self):
        return f'{self.currency} {self.rate}'
