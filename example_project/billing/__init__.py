"""Invoices, and the exchange rates they need."""
