"""Pure functions of tensors (torch only): the numerical core that everything else stands on."""
