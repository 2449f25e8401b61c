"""What happens to a job, against ports: planning, the stages, dispatch, healing."""
