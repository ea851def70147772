"""Columns: stored records as Arrow record batches, for the Spark source and for a consumer's `batches`."""
