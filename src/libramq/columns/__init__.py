"""Columns: stored records as Arrow record batches, for Spark's source and for a consumer's `batches`."""
