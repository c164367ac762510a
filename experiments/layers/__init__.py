"""Errors of single layers: tables and pictures."""
