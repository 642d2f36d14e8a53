"""Policy gradients for the ensemble head: samples of answers, what to maximise, and the loop around both."""
