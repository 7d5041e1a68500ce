"""The command-line tools: what goes between topics, files, pipes and people."""
