"""SQL92 filters: conditions on a message's properties, such as `a > 3 AND region IN ('eu', 'us')`."""

from libramq.filter.sql.expression import SQL92, SqlFilter, is_parsed, parse_sql

__all__ = ["SQL92", "SqlFilter", "is_parsed", "parse_sql"]
