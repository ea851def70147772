"""What is deleted: old files, removed topics, and the room that the disk has left."""
