"""The other servers of the cluster: name servers, brokers and slaves."""
