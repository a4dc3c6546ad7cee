"""A PyTorch program becomes a Graph [MagPy, torch.export]."""
