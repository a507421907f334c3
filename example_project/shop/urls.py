"""The admin, where the jobs are: http://127.0.0.1:8000/admin/anarchon/"""

from django.contrib import admin
from django.urls import path

urlpatterns = [path('admin/', admin.site.urls)]
