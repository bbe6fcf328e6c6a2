"""Rows that changed: copied, written by id, and put onto what was there before."""
