"""The fit behind `scripts/fit_efficiency.py`: constants, priors, runs, solving and reporting."""
