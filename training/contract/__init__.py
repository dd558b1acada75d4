"""The contract between a stage and whoever runs it: records, jobs, artifacts, identity, and the process of a job."""
