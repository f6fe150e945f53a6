"""Receivers that the broker connects to: `deliveries` decides who delivers what, `feed` reads, `connection` sends."""
