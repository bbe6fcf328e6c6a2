"""The one cost model: what memory and links a placement uses."""
