"""One small module for each trainer and logger. None is imported before it is asked for."""
