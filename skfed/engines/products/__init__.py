"""The products that many clients need in a step, by linear layers, torch.func and CUDA graphs."""
