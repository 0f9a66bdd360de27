"""The control plane: which machine should hold which layers."""
