"""Devices, links and software that training runs on, as numbers from data sheets and measurements."""
