"""What the doctor knows to look for, by what it looks at."""
