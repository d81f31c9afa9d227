"""From a command or a call to stored records: configurations, jobs, executors, records and the store."""
