"""What lies in a device's memory during a training step, part by part.

`state.py` counts what stays (parameters, gradients, optimizer), `working.py` what comes and goes
(activations kept for backward, the layer at work, gathered parameters, buffers, logits). When
they meet is said in `step.py`: read that first.
"""
