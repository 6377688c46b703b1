"""Oncelery."""
