"""Bodies of requests and replies that carry more than a flat header: typed values over the JSON dialect."""
