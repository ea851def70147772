"""The groups' committed offsets, the fences that control reads and commits, and the files of both."""
