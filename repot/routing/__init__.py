"""Which of two brokers a task goes to while a rollout moves an application from one to the other."""
