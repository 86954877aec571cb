"""The platform: SimCSE on Ray, DeepSpeed and MLflow."""
