from django.db import models


class DailyReport(models.Model):
    """What was sent on one day."""

    day = models.DateField(primary_key=True)
    invoices = models.PositiveIntegerField(default=0)
    total = models.DecimalField(max_digits=14, decimal_places=2, default=0)
    fence = models.BigIntegerField(default=0, help_text='of the run that wrote it')

    def __str__(self):
        return f'{self.day}: {self.invoices} invoices, {self.total} EUR'
