"""Retention: old files and removed topics are deleted, by age and by the room that the disk has left."""
