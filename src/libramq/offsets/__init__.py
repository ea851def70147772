"""The groups' committed offsets, the fences that decide who may read and commit, and the files of both."""
