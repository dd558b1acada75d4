"""What commands print while they work and when they end: progress, time left, evidence of gates, errors."""
