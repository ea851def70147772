"""Membership: how a consumer joins its group, and whether it or the coordinator decides which queues it
reads.
"""
