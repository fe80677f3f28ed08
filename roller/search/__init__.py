"""Construction: programs from aligned tiles, level by level, screened, rated and improved."""
