"""Which nodes need more precision: sensitivity, mixed precision, accuracy targets."""
