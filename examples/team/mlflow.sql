create database mlflow;
