"""The other servers of a cluster: registration at name servers, requests to brokers, masters and slaves."""
