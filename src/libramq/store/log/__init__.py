"""The commit log: records, their files, appending and cutting."""
