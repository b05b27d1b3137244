"""Plans, schedules and runs steps, and compiles the ones that repeat."""
