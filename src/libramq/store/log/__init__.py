"""The commit log: records, their files, and what may be added to them or cut off."""
